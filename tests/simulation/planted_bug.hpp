#pragma once
// Bugs that are planted to see whether the simulation finds them.

/// 0: none. 1: a rank that fails does not tell rank 0. 2: a rank that fails tells its peers only after its call has
/// returned, when its buffers may already have changed. 3: ranks with different views of who is left form a group; only
/// in programs with the library accord_planted.
extern "C" int accord_planted_bug;
