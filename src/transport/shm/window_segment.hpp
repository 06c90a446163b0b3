#pragma once
// A rank's window, followed by the words in which its peers report their state.

#include <atomic>
#include <cstdint>
#include <span>
#include <utility>

#include "memory/shared_segment.hpp"

namespace accord::transport {

/// A peer's progress with this window, as reported by the peer.
enum class PeerWord : std::uint64_t {
  kNothing = 0,
  kConnected = 1,  ///< it has mapped the window
  kGaveUp = 2,     ///< it left in good order before it was connected with all
  kLeft = 3        ///< it left after that
};

/// A shared segment: the window in whole pages, then one word per rank, written by that rank.
class WindowSegment {
 public:
  static Result<WindowSegment> create(std::string_view name, std::size_t window_bytes, int size) {
    ACCORD_ASSIGN_OR_RETURN(memory::SharedSegment segment,
                            memory::SharedSegment::create(name, words_at(window_bytes) + words_bytes(size)));
    return WindowSegment(std::move(segment), window_bytes);
  }
  /// Maps a peer's segment. Fails with kMismatch if it does not have that size.
  static Result<WindowSegment> open(UniqueFd fd, std::size_t window_bytes, int size) {
    ACCORD_ASSIGN_OR_RETURN(memory::SharedSegment segment,
                            memory::SharedSegment::open(std::move(fd), words_at(window_bytes) + words_bytes(size)));
    segment.close_fd();
    return WindowSegment(std::move(segment), window_bytes);
  }

  std::span<std::byte> window() const { return segment_.bytes().first(window_bytes_); }
  std::atomic_ref<std::uint64_t> word_of(Rank rank) const {
    std::byte* words = segment_.bytes().data() + words_at(window_bytes_);
    return std::atomic_ref<std::uint64_t>(reinterpret_cast<std::uint64_t*>(words)[rank]);
  }
  int fd() const { return segment_.fd(); }
  void close_fd() { segment_.close_fd(); }

 private:
  static constexpr std::size_t kPage = 4096;
  static std::size_t words_at(std::size_t window_bytes) { return (window_bytes + kPage - 1) / kPage * kPage; }
  static std::size_t words_bytes(int size) { return sizeof(std::uint64_t) * static_cast<std::size_t>(size); }
  WindowSegment(memory::SharedSegment segment, std::size_t window_bytes)
      : segment_(std::move(segment)), window_bytes_(window_bytes) {}

  memory::SharedSegment segment_;
  std::size_t window_bytes_;
};

}  // namespace accord::transport
