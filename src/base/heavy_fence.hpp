#pragma once
// An asymmetric fence: one thread executes it on behalf of all threads of the process, so that the others need none.
//
// If two threads each write one location and then read the other's, at least one sees the other's write only if both
// put a fence between the write and the read. When one thread does this all the time and the other hardly ever, the
// first only keeps its instructions in order (a compiler fence, which costs nothing) and the second calls
// heavy_fence(), which takes some microseconds.

namespace accord {

/// False if the kernel does not support it (before Linux 4.14, or forbidden). Determined once.
bool has_heavy_fence();

/// REQUIRES: has_heavy_fence().
void heavy_fence();

}  // namespace accord
