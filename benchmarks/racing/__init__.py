"""How peers run in turns, on which lengths and units, how their outputs are compared, and the tables of the figures."""
