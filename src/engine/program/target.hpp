#pragma once
// The device that runs programs, as far as preparing them needs to know it. host/ and gpu/ implement this interface.

#include <memory>
#include <span>

#include "accord/buffer.hpp"
#include "engine/program/step_table.hpp"

namespace accord::engine {

/// Bytes that were computed on the CPU while a program was prepared.
struct Constant {
  std::span<const std::byte> bytes;
  std::byte* address = nullptr;  ///< where the program's steps read them
};

class Target {
 public:
  virtual ~Target() = default;

  virtual Device device() const = 0;
  /// The steps of programs.
  virtual const StepTable& steps() const = 0;
  /// The steps, on the CPU, that compute values that depend on no input.
  virtual const StepTable& constant_steps() const = 0;
  /// Whether steps read the caller's inputs where they are. Otherwise a run copies them into the arena.
  virtual bool reads_inputs_in_place() const = 0;
  /// Sets the addresses of `constants`. Returns the owner of their memory: null if they stay where they are. Fails
  /// with kResourceExhausted if the device lacks memory.
  virtual Result<std::shared_ptr<const void>> place_constants(std::span<Constant> constants) const = 0;
};

}  // namespace accord::engine
