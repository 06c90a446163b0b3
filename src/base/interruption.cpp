#include "base/interruption.hpp"

#include <utility>

namespace accord {
namespace {
thread_local Interruption::Wanted wanted_of_this_thread = nullptr;
}  // namespace

Interruption::Interruption(Wanted wanted) : outer_(std::exchange(wanted_of_this_thread, wanted)) {}
Interruption::~Interruption() { wanted_of_this_thread = outer_; }
bool Interruption::is_wanted() { return wanted_of_this_thread != nullptr && wanted_of_this_thread(); }

}  // namespace accord
