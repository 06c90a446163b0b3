#pragma once
// The handle and the used uuids of a rank, which it keeps between formations of groups.

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "comm/formation/handle.hpp"

namespace accord::comm {

/// A rank's means to take part in formations: its handle, and the uuids that it has used. Thread-safe.
class FormationPoint {
 public:
  /// Returns the text of the current handle; opens a listener the first time, and again after take().
  Result<std::string> handle();
  /// Returns the listener behind `handle`, for one formation. kWrongState if that is not the current handle any more.
  /// kInvalidArgument if `uuid` was passed before, here or to a point that this one follows; the handle is used up then
  /// as well, so that ranks which wait for this one learn that it does not come.
  Result<HandleListener> take(std::string_view uuid, const Handle& handle, std::string_view where);
  /// No other rank can reach this one by its handle any more.
  void close();
  /// Makes this point, that of a group formed from `other`'s, refuse the uuids that `other` does.
  void follow(const FormationPoint& other);

 private:
  struct Uuids {
    std::mutex mutex;
    std::set<std::string, std::less<>> used;
  };
  mutable std::mutex mutex_;
  std::optional<HandleListener> listener_;
  std::shared_ptr<Uuids> uuids_ = std::make_shared<Uuids>();
};

}  // namespace accord::comm
