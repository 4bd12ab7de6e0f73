"""What tools/record and tools/report share: recorded results, charts, figures and tables."""
