// One map under one lock. Threads that wait for a key sleep on one condition and check again after each set.
#include <condition_variable>
#include <map>
#include <mutex>

#include "base/clock.hpp"
#include "store/entry.hpp"

namespace accord {
namespace {

class MemoryStore final : public Store {
 public:
  Status set(std::string_view key, std::string_view value) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    ACCORD_RETURN_IF_ERROR(store::check_value(key, value));
    const std::lock_guard lock(mutex_);
    put(key, std::string(value));
    return Status();
  }

  Result<std::string> get(std::string_view key, Duration timeout) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    const Deadline deadline = Deadline::in(timeout);
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto entry = values_.find(key);
      if (entry != values_.end()) return entry->second;
      if (deadline.passed()) return store::not_set(describe(), key, timeout);
      changed_.wait_until(lock, deadline.at());
    }
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    const std::lock_guard lock(mutex_);
    const auto entry = values_.find(key);
    ACCORD_ASSIGN_OR_RETURN(const std::int64_t sum,
                            store::add_to(key, entry == values_.end() ? nullptr : &entry->second, delta));
    put(key, std::to_string(sum));
    return sum;
  }

  Status erase(std::string_view key) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    const std::lock_guard lock(mutex_);
    const auto entry = values_.find(key);
    if (entry != values_.end()) values_.erase(entry);
    return Status();
  }

  std::string describe() const override { return "memory"; }

 private:
  // REQUIRES: mutex_ is held.
  void put(std::string_view key, std::string value) {
    values_.insert_or_assign(std::string(key), std::move(value));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace

std::shared_ptr<Store> make_memory_store() { return std::make_shared<MemoryStore>(); }

}  // namespace accord
