#pragma once
// Where the buffers of a channel's running operation are, as plans that reach into peers' memory need to know.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "comm/window/window_registry.hpp"
#include "comm/window/window_table.hpp"
#include "exec/placement.hpp"
#include "topology/topology.hpp"

namespace accord::comm {

class BufferPlaces {
 public:
  explicit BufferPlaces(const topology::Topology& topology) {
    if (!topology.readable()) return;
    for (const Rank r : topology.ranks()) processes_.push_back(topology.place(r).process);
    in_memory_.processes = &processes_;
  }
  BufferPlaces(const BufferPlaces&) = delete;
  BufferPlaces& operator=(const BufferPlaces&) = delete;

  /// Finds the windows that hold the operation's buffers.
  void find(WindowRegistry& windows, const Operation& operation, const exec::Domain& domain) {
    if (table_ == nullptr || table_->version != windows.version()) table_ = windows.table();
    place_buffers(*table_, operation, domain, in_windows_);
  }
  /// The next operation's buffers are in no windows.
  void find_none() { in_windows_ = {}; }
  /// Releases windows that no longer exist.
  void forget() {
    table_ = nullptr;
    in_windows_ = {};
  }

  /// Whether all of the operation's buffers are in windows.
  bool registered() const { return in_windows_.windows != nullptr; }
  /// Whether input and output overlap in their window.
  bool in_place() const { return in_windows_.in_place; }
  const exec::Placement& in_windows() const { return in_windows_; }

  /// For plans that read the peers' memory without windows.
  const exec::Placement& in_memory() const { return in_memory_; }
  const exec::Placement& in_memory(const void* input, const void* output) {
    const auto place = [](const void* address) {
      return address == nullptr ? exec::kNoPlace : reinterpret_cast<exec::PlaceWord>(address);
    };
    in_memory_.input = place(input);
    in_memory_.output = place(output);
    return in_memory_;
  }
  /// Returns a copy of the input, which peers may read while this rank writes its output over the input. It lives until
  /// the next call.
  const void* copy(std::span<const std::byte> input) {
    copied_.assign(input.begin(), input.end());
    return copied_.data();
  }

 private:
  std::shared_ptr<const WindowTable> table_;  ///< as of the last look
  exec::Placement in_windows_;
  std::vector<int> processes_;  ///< of the members, if they may read each other's memory
  exec::Placement in_memory_;
  std::vector<std::byte> copied_;
};

}  // namespace accord::comm
