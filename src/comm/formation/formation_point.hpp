#pragma once
// What a rank keeps between formations of groups.

#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "accord/status.hpp"
#include "comm/formation/handle.hpp"

namespace accord::comm {

/// What a rank needs to take part in formations: its handle, and which formations it has taken part in. Thread-safe.
class FormationPoint {
 public:
  /// Returns the text of the current handle; opens a listener the first time, and again after take().
  Result<std::string> handle();
  /// Returns the listener behind the current handle, for one formation. kInvalidArgument if `uuid` was passed before,
  /// here or to a point that this one follows; kWrongState if there is no handle.
  Result<HandleListener> take(std::string_view uuid, std::string_view where);
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
