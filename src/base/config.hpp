#pragma once
// What the environment says: every ACCORD_* variable that accord reads, typed and documented in one table (config.cpp).

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "accord/store.hpp"

namespace accord {

struct Config {
  std::string log_level = "warn";                 ///< ACCORD_LOG
  std::string debug = "off";                      ///< ACCORD_DEBUG, "info" or "off"
  Duration timeout = std::chrono::minutes(5);     ///< ACCORD_TIMEOUT, seconds
  std::string transport = "auto";                 ///< ACCORD_TRANSPORT
  std::string host_id;                            ///< ACCORD_HOST_ID, part of what tells hosts apart
  std::string select;                             ///< ACCORD_SELECT, see docs/architecture.md
  std::size_t slot_bytes = std::size_t{1} << 20;  ///< ACCORD_SLOT_BYTES, of the scratch of a round
  bool single_copy = true;                        ///< ACCORD_SINGLE_COPY, "auto" or "off"
  int threads = 1;                                ///< ACCORD_THREADS, that an engine computes with in each rank
  std::size_t recorder_size = 1024;               ///< ACCORD_RECORDER_SIZE, operations of each order, a power of two
  std::string dump_directory;                     ///< ACCORD_DUMP_DIR, where failures are dumped; empty: nowhere
};

/// One variable, for `accord info` and the docs.
struct ConfigEntry {
  std::string_view variable;
  std::string_view default_value;
  std::string_view meaning;
};
std::span<const ConfigEntry> config_entries();

/// The variables of this process.
std::map<std::string, std::string> process_environment();

/// Reads `environment` (name -> value). A variable with our prefix that is not in the table is kInvalidArgument and names
/// the nearest one; so is a value out of range.
Result<Config> parse_config(const std::map<std::string, std::string>& environment);

/// parse_config of this process's environment, read once.
const Result<Config>& config();

}  // namespace accord
