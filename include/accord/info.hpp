#pragma once
// What this build and this machine have: versions, instruction sets, transports, and why each missing part is off.

#include <string>
#include <string_view>
#include <vector>

#include "accord/status.hpp"

namespace accord {

/// A part of accord that may be there or not.
struct PartInfo {
  std::string name;  ///< "shm", "nccl", ...
  bool available = false;
  std::string detail;  ///< its version or what it is; if not available, why not and what to do
};

/// One ACCORD_* variable.
struct VariableInfo {
  std::string name;
  std::string value;    ///< what holds now
  bool is_set = false;  ///< by the environment; otherwise `value` is the default
  std::string default_value;
  std::string meaning;
};

/// Facts of this process, build and machine. A value.
struct Info {
  std::string version;               ///< of accord
  std::string build_type;            ///< "Release"
  std::string compiler;              ///< "GNU 12.2.0"
  std::string sanitizers;            ///< "address,undefined"; usually empty
  std::string instruction_set;       ///< that the CPU kernels run on, "AVX3"
  int cpus = 0;                      ///< processors that this process may use
  int cores = 0;                     ///< physical cores among them
  int numa_nodes = 0;                ///< memory nodes of those
  std::vector<PartInfo> transports;  ///< the preferred one first
  std::vector<PartInfo> parts;       ///< libraries and devices
  std::vector<VariableInfo> variables;
  Status configuration;  ///< why the ACCORD_* variables cannot be read, if so
};

/// "0.1.0".
std::string_view version();

/// Looks. Loads NCCL's library to ask for its version and lets it go again; touches nothing else. Cost: milliseconds.
Info info();

/// Ok if the transport or part of that name is available, else kUnsupported with the reason; kInvalidArgument names the
/// nearest one for a name that no build has.
Status check_feature(std::string_view name);

/// One JSON object with the fields of Info by their names; docs/cli.md describes it.
std::string to_json(const Info& info);

}  // namespace accord
