"""What is raced: ours and each peer, behind one call that does a work and returns what it found."""
