#pragma once
// From timings of primitives to the figures of a machine. Pure: `accord sim calibrate` (src/cli/sim) takes the timings.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/machine.hpp"

namespace accord::sim {

/// Which of several measurements counts. Programs that run beside the measurement change the minimum least.
enum class Statistic : std::uint8_t { kMedian, kMinimum };

/// Several measurements of one thing.
struct Figure {
  double value = 0;
  double spread = 0;  ///< interquartile range divided by the median
};
/// REQUIRES: samples is not empty.
Figure figure_of(std::vector<double> samples, Statistic statistic = Statistic::kMedian);

/// Seconds of a call that does something `times` times.
struct Repeated {
  int times = 1;
  Figure seconds;
};
/// Seconds of something that handles `bytes` bytes.
struct Sized {
  double bytes = 0;
  Figure seconds;
};

/// The seconds of one more time, by Theil and Sen: the median of the slopes between all pairs, which a minority of
/// wrong points does not change. REQUIRES: two or more different numbers of times.
double slope_of(const std::vector<Repeated>& points);

struct HostTimings {
  int ranks = 1;
  int cores = 1;
  Figure call{};                       ///< seconds of a call of a rank alone
  Figure hop{};                        ///< seconds until another rank sees a word, of ranks that take turns
  std::vector<Repeated> steps{};       ///< calls with copies of 8 bytes
  std::vector<Sized> copies{};         ///< between two buffers of one rank
  std::vector<Sized> writes{};         ///< copies into memory that another rank has read since the last write
  std::vector<Sized> reads{};          ///< copies out of memory that another rank has written since the last read
  std::vector<Sized> packet_writes{};  ///< the same in packets
  std::vector<Sized> packet_reads{};
  Sized packet_sum{};                  ///< of packets and a buffer
  std::vector<Sized> kernel_reads{};   ///< by the kernel out of another rank's buffer; empty: it refuses
  std::vector<double> memory_rates{};  ///< bytes per second read and written by each rank, all at once
  Figure core_switch{};                ///< seconds from one rank of a core to the other
};

/// Timings between two ranks of two hosts.
struct NetworkTimings {
  std::vector<Repeated> round_trips{};  ///< calls in which a signal goes to the other host and one comes back
  Figure message{};                     ///< seconds of each of many small messages in one direction
  Figure stream{};                      ///< bytes per second of long messages in one direction
  bool share_cores = false;             ///< both are namespaces of one machine
};

/// A machine, and for keys such as "host.hop_seconds" how they were measured.
struct Calibrated {
  Machine machine;
  std::vector<std::pair<std::string, std::string>> notes{};
};

/// REQUIRES: timings of everything that may not be empty.
Calibrated host_from(const HostTimings& timings);
/// Adds a crossbar of such links.
void add_network(const NetworkTimings& timings, Calibrated& calibrated);

}  // namespace accord::sim
