"""Writes engine packages and saved programs, and reads saved programs: the files, how weights are laid out and divided
among ranks, and the calling convention of the model."""
