"""What tests share, by subject. `places`: folders of the repository; `tracked_files`: its text files."""
