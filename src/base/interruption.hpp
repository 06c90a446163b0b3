#pragma once
// Interrupts a wait for a reason of the caller's own, such as a signal that the program wants to handle.

namespace accord {

/// While the object lives, slow waits of this thread that can be abandoned safely call `wanted` now and then, and
/// fail with kAborted once it returns true. Costs nothing unless the thread waits. A nested Interruption replaces the
/// outer one while it lives.
class Interruption {
 public:
  using Wanted = bool (*)();

  explicit Interruption(Wanted wanted);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  /// Whether this thread should abandon its wait.
  static bool is_wanted();

 private:
  const Wanted outer_;
};

}  // namespace accord
