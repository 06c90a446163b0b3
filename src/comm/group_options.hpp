#pragma once
// CommunicatorOptions with every option resolved.

#include <string>

#include "accord/communicator.hpp"
#include "accord/status.hpp"
#include "base/config.hpp"

namespace accord::comm {

struct GroupOptions {
  std::string name = {};
  Duration timeout = {};  ///< for calls without one of their own
  std::string transport = "auto";
  std::string select = {};
  GroupHints hints = {};
};

/// For example ", max_ctas=8": the hints for calls on GPUs that were given and must be equal on all ranks.
std::string device_terms(const GroupHints& hints);

/// Takes options that the caller left out from the environment, and reads the tuner's table if one is named.
Result<GroupOptions> resolve(CommunicatorOptions options);

/// Returns the options of a group that is created from one with the options `parent`: the name, the options that were
/// given, and the parent's for the rest. Rules of `select` are appended to the parent's; each hint is the given one
/// or else the parent's. Fails as read_select() (select_text.hpp) and parse_hints() do.
Result<GroupOptions> inherit(const GroupOptions& parent, CommunicatorOptions given);

}  // namespace accord::comm
