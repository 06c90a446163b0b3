#pragma once
// Leaving a wait for a reason of the caller's own: a signal that the program wants to see.

namespace accord {

/// While it lives, slow waits of this thread that harm nothing when they are left look at `wanted` now and then, and end with
/// kAborted once it gives true. Costs nothing where nothing waits. An inner one stands for the outer one while it lives.
class Interruption {
 public:
  using Wanted = bool (*)();

  explicit Interruption(Wanted wanted);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// Whether this thread is to leave its wait.
  static bool is_wanted();

 private:
  const Wanted outer_;
};

}  // namespace accord
