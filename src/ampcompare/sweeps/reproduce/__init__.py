"""`ampcompare reproduce`: what others have published, listed, run again in their setting, judged."""
