// Stands in for the toolkit's header: NVRTC declares the device runtime, graph launch included, by itself.
