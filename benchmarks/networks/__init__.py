"""Networks of random weights in the shapes of real models, on disk or on the device."""
