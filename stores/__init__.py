"""What memory is and where it is kept: records, ids, errors, and the stores behind them."""
