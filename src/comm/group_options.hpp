#pragma once
// CommunicatorOptions with nothing left open.

#include <string>

#include "accord/communicator.hpp"
#include "accord/status.hpp"
#include "base/config.hpp"

namespace accord::comm {

struct GroupOptions {
  std::string name = {};
  Duration timeout = {};  ///< of calls that bring none of their own
  std::string transport = "auto";
  std::string select = {};
  GroupHints hints = {};
};

/// ", max_ctas=8" of those hints of calls on GPUs that are given and have to be equal on all ranks.
std::string device_terms(const GroupHints& hints);

/// Fills from the environment what the caller left open, and reads the tuner's table where one is named.
Result<GroupOptions> resolve(CommunicatorOptions options);

/// What a group that is made from one with the options `parent` has: the name, what is given, and the parent's for the rest.
/// Rules of `select` come after the parent's, hints are one by one the given or the parent's. Fails as read_select() does
/// (select_text.hpp) and parse_hints().
Result<GroupOptions> inherit(const GroupOptions& parent, CommunicatorOptions given);

}  // namespace accord::comm
