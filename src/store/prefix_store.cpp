// Every call is forwarded to the underlying store, with the prefix and a slash before its key. The key is checked
// here as well, so that an empty key is rejected and does not become the bare prefix.
#include "store/entry.hpp"

namespace accord {
namespace {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> below, std::string prefix)
      : below_(std::move(below)), prefix_(std::move(prefix) + "/") {}

  Status set(std::string_view key, std::string_view value) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    return below_->set(prefixed(key), value);
  }
  Result<std::string> get(std::string_view key, Duration timeout) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    return below_->get(prefixed(key), timeout);
  }
  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    return below_->add(prefixed(key), delta);
  }
  Status erase(std::string_view key) override {
    ACCORD_RETURN_IF_ERROR(store::check_key(key));
    return below_->erase(prefixed(key));
  }
  std::string describe() const override { return below_->describe() + " under " + prefix_; }

 private:
  std::string prefixed(std::string_view key) const { return prefix_ + std::string(key); }

  const std::shared_ptr<Store> below_;
  const std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> store, std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(store), std::move(prefix));
}

}  // namespace accord
