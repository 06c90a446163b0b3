#include "base/interruption.hpp"

namespace accord {
namespace {
thread_local Interruption::Wanted wanted_of_this_thread = nullptr;
}  // namespace

Interruption::Interruption(Wanted wanted) { wanted_of_this_thread = wanted; }
Interruption::~Interruption() { wanted_of_this_thread = nullptr; }
bool Interruption::is_wanted() { return wanted_of_this_thread != nullptr && wanted_of_this_thread(); }

}  // namespace accord
