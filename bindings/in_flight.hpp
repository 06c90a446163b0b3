#pragma once
// Arrays of operations whose Work was dropped before they ended.

#include "accord/work.hpp"
#include "call_arguments.hpp"

namespace accord::python {

/// Keeps the arrays of `arguments` in place until `work` has ended. They are let go at a later call of this or of
/// let_go_of_ended(); at the interpreter's end those of unfinished operations are never freed, since they may still be
/// written. REQUIRES: the GIL.
void keep_until_ended(Work work, HeldArguments arguments);

void let_go_of_ended();

}  // namespace accord::python
