#pragma once
// Things that end with a group.

#include <string_view>

namespace accord::comm {

/// Something that a rank made from a group, and that ends when this rank aborts the group.
class MadeFromGroup {
 public:
  virtual void abort(std::string_view reason) = 0;

 protected:
  ~MadeFromGroup() = default;
};

}  // namespace accord::comm
