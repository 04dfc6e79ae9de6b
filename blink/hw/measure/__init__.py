"""Short measured programmes on a real GPU, whose figures go into profiles and their tests."""
