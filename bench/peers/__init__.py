"""Other runtimes as subprocesses that answer requests, so that they can be measured in turn."""
