"""What is recorded and how: vocabulary, clocks, the black box, the recorder, the CUDA-event pool."""
