"""Memory as tools for agents, over the Model Context Protocol: on stdio and over HTTP."""
