#pragma once
// Properties of this build and machine: versions, instruction sets, transports, and why each missing part is
// unavailable.

#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"

namespace accord {

/// An optional part of accord.
struct PartInfo {
  std::string name;  ///< "shm", "nccl", ...
  bool available = false;
  std::string detail;  ///< its version or description; if not available, the reason and what to do
};

/// One ACCORD_* variable.
struct VariableInfo {
  std::string name;
  std::string value;    ///< the effective value
  bool is_set = false;  ///< by the environment; otherwise `value` is the default
  std::string default_value;
  std::string meaning;
};

/// Facts about this process, build and machine. A value.
struct Info {
  std::string version;               ///< of accord
  std::string build_type;            ///< "Release"
  std::string compiler;              ///< "GNU 12.2.0"
  std::string sanitizers;            ///< "address,undefined"; usually empty
  std::string instruction_set;       ///< that the CPU kernels use, "AVX3"
  int cpus = 0;                      ///< processors that this process may use
  int cores = 0;                     ///< physical cores among them
  int numa_nodes = 0;                ///< memory nodes of those
  std::vector<PartInfo> transports;  ///< the preferred one first
  std::vector<PartInfo> parts;       ///< libraries and devices
  std::vector<VariableInfo> variables;
  Status configuration;  ///< an error if the ACCORD_* variables cannot be read
};

/// "0.1.0".
std::string_view version();

/// Collects the facts. Loads NCCL's library to query its version and unloads it again; has no other effect. Cost:
/// milliseconds.
Info info();

/// Ok if the named transport or part is available, else kUnsupported with the reason. A name that no build has fails
/// with kInvalidArgument, which names the nearest one.
Status check_feature(std::string_view name);

/// Returns a JSON object with the fields of Info by their names; docs/cli.md describes it.
std::string to_json(const Info& info);

}  // namespace accord
