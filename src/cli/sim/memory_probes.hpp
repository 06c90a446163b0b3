#pragma once
// Timings of copies: in a rank's own memory, and in memory that two ranks share.

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "accord/communicator.hpp"
#include "base/clock.hpp"
#include "sim/calibration.hpp"

namespace accord::cli {

/// Memory that the ranks of a command share. Made before they are forked.
class SharedMemory {
 public:
  static Result<std::unique_ptr<SharedMemory>> create(std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  SharedMemory(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* data_;
  std::size_t bytes_;
};

/// The processes of one host. All ranks call each method, in the same order, and rank 0 gets the results.
class MemoryProbes {
 public:
  /// Bytes of the shared memory.
  static std::size_t shared_bytes();
  /// `seconds`: for each size.
  MemoryProbes(SharedMemory& shared, Communicator control, double seconds, sim::Statistic statistic);
  ~MemoryProbes();

  struct Copies {
    std::vector<sim::Sized> within;    ///< from buffer to buffer of rank 0
    std::vector<double> memory_rates;  ///< bytes per second read and written by each rank, all at once
  };
  Result<Copies> copies();

  /// Seconds until another rank sees a word: half round trips.
  Result<sim::Figure> hop();

  struct Exchanges {
    std::vector<sim::Sized> writes, reads;                ///< rank 0 writes and rank 1 reads
    std::vector<sim::Sized> packet_writes, packet_reads;  ///< the same in packets, as the executor writes them
  };
  Result<Exchanges> exchanges();
  /// The sum of packets and a buffer, line by line, of all ranks at once.
  Result<sim::Sized> packet_sum();
  /// By the kernel, of ranks 0 and 1 out of a buffer of each other; empty if the kernel refuses.
  Result<std::vector<sim::Sized>> kernel_reads();
  /// Seconds from one to the other of two ranks that share a core: half round trips.
  Result<sim::Figure> core_switch();

 private:
  struct Readable;
  struct Header;
  struct Memory;
  Header& header() const;
  void wait_for_turn(std::uint64_t turn) const;
  void pass_turn(std::uint64_t turn) const;
  struct Handler;
  bool is_last(std::size_t samples, Clock::time_point began) const;
  Result<std::vector<double>> half_round_trips(int trips_per_sample,
                                               const std::function<void(std::uint64_t turn)>& wait);
  sim::Figure exchange(const Handler& handler);
  void exchange(const Handler& handler, std::size_t bytes, std::vector<sim::Sized>& writes,
                std::vector<sim::Sized>& reads);
  sim::Figure repeat(const std::function<void()>& work) const;

  SharedMemory& shared_;
  Communicator control_;
  double seconds_;
  sim::Statistic statistic_;
  double clock_seconds_;  ///< of reading the clock
  std::unique_ptr<Memory> memory_;
};

}  // namespace accord::cli
