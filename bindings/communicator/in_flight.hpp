#pragma once
// Arrays of operations whose Work was dropped before they ended.

#include "accord/work.hpp"
#include "bindings/communicator/call_arguments.hpp"

namespace accord::python {

/// Keeps the arrays of `arguments` in place until `work` has ended. They are released by a later call of this
/// function or of release_ended(). At the interpreter's end, the arrays of unfinished operations are never freed,
/// because they may still be written. REQUIRES: the GIL.
void keep_until_ended(Work work, HeldArguments arguments);

void release_ended();

}  // namespace accord::python
