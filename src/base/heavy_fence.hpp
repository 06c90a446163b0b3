#pragma once
// A fence that one thread executes for all threads of the process, so that the others need none.
//
// Of two threads that each write one place and then read the other's, one sees what the other wrote only if both put a fence
// between. Where one of them does it all the time and the other hardly ever, the first keeps to the order of its instructions
// (a compiler's fence, which costs nothing) and the second calls heavy_fence(): some microseconds.

namespace accord {

/// False where the kernel cannot do it (before Linux 4.14, or forbidden); found out once.
bool has_heavy_fence();

/// REQUIRES: has_heavy_fence().
void heavy_fence();

}  // namespace accord
