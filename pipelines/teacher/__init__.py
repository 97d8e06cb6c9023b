"""What happens to a teacher beside the stream."""
