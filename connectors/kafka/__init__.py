"""Apache Kafka in and out: our own Bytewax source and sink, topics, dead letters."""
