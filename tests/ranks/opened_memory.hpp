#pragma once
// Finds out whether another process can open this process's device memory. Containers may forbid it.

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "device/memory.hpp"
#include "device/runtime.hpp"
#include "ranks/spawned_test.hpp"

namespace accord::testing {

/// The environment variable of the process that opens the memory: a pipe's descriptor, a colon, the handle as hex.
inline constexpr const char* kOpensMemory = "OPENS_MEMORY";
/// The size of the memory: the least that drivers share.
inline constexpr std::size_t kSharedBytes = std::size_t{2} << 20;
/// The first word of the memory.
inline constexpr std::uint64_t kSharedWord = 0x0123456789ABCDEF;
/// Loading CUDA takes some seconds on a busy machine.
inline constexpr std::chrono::seconds kOpeningTimeout(30);

inline bool is_opening_memory() { return std::getenv(kOpensMemory) != nullptr; }

/// Opens the memory and checks its first word.
inline Status open_and_check(device::Runtime& runtime, Device device, const device::MemoryHandle& handle) {
  ACCORD_ASSIGN_OR_RETURN(void* const memory, runtime.open_shared(device, handle, /*descriptor=*/-1));
  std::uint64_t word = 0;
  ACCORD_RETURN_IF_ERROR(runtime.copy(&word, memory, sizeof word, device, {}));
  ACCORD_RETURN_IF_ERROR(runtime.synchronize(device, {}));
  ACCORD_RETURN_IF_ERROR(runtime.close_shared(device, memory));
  return word == kSharedWord ? Status() : Status(StatusCode::kInternal, "the opened memory has other contents");
}

/// The first call of a test that calls check_memory_opens(), before it uses the device. In the process started by
/// that function it opens the memory, reports to the test, and ends the process. Otherwise it does nothing.
inline void open_memory_if_asked(device::Runtime& runtime, Device device) {
  if (!is_opening_memory()) return;
  const std::string asked = std::getenv(kOpensMemory);
  const std::size_t colon = asked.find(':');
  device::MemoryHandle handle{.allocated = kSharedBytes};
  for (std::size_t i = 0; i < handle.bytes.size(); ++i) {
    const char* const digits = asked.data() + colon + 1 + 2 * i;
    (void)std::from_chars(digits, digits + 2, handle.bytes[i], 16);
  }
  const Status status = open_and_check(runtime, device, handle);
  const std::string reply = status.ok() ? "ok" : status.message();
  const bool sent = ::write(std::atoi(asked.c_str()), reply.data(), reply.size()) > 0;
  std::_Exit(sent ? 0 : 1);
}

/// Runs the current test in another process, where open_memory_if_asked() opens memory of `device`, which this process
/// allocates. Returns kUnsupported with the reason if that fails.
inline Status check_memory_opens(device::Runtime& runtime, Device device) {
  const auto failed = [](const std::string& why) {
    return Status(StatusCode::kUnsupported, "another process cannot open this process's device memory: " + why);
  };
  ACCORD_ASSIGN_OR_RETURN(const device::Memory memory,
                          device::Memory::allocate(runtime, device, kSharedBytes, "a check of shared memory"));
  ACCORD_RETURN_IF_ERROR(runtime.copy(memory.data(), &kSharedWord, sizeof kSharedWord, device, {}));
  ACCORD_RETURN_IF_ERROR(runtime.synchronize(device, {}));
  UniqueFd descriptor;
  const Result<device::MemoryHandle> handle = runtime.share(device, memory.data(), kSharedBytes, descriptor);
  if (!handle.ok()) return failed(handle.status().message());

  std::array<int, 2> ends = {};
  if (::pipe(ends.data()) != 0) return failed(errno_status(errno, "pipe").message());
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  std::string asked = std::string(kOpensMemory) + "=" + std::to_string(ends[1]) + ":";
  for (const unsigned char byte : handle->bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    asked += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  const pid_t process = spawn_this_test({asked});
  if (process < 0) return failed("no process can be started");
  writing.reset();
  const Status replied = wait_readable(reading.get(), Deadline::in(kOpeningTimeout), "the other process");
  std::string reply = replied.message();
  std::array<char, 1000> text;
  if (replied.ok()) {
    const ssize_t bytes = ::read(reading.get(), text.data(), text.size());
    reply = bytes > 0 ? std::string(text.data(), static_cast<std::size_t>(bytes)) : "it ended without a reply";
  } else {
    ::kill(process, SIGKILL);
  }
  (void)::waitpid(process, nullptr, 0);
  if (reply == "ok") return {};
  return failed(reply);
}

}  // namespace accord::testing
