// get() polls, because a wait inside Python could not be ended, and because the waits of torch's stores block all
// other users of their client. Each method takes the GIL, makes its Python call and converts its result or exception
// to a Result. The object is released with the GIL as well, or never if the interpreter is ending.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "bindings/arguments/integers.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/process.hpp"
#include "bindings/interpreter/status.hpp"
#include "bindings/store/store.hpp"

namespace accord::python {
namespace {

// Between two polls for a key: short at first, then longer.
constexpr auto kMinPause = std::chrono::milliseconds(1);
constexpr auto kMaxPause = std::chrono::milliseconds(20);

using Clock = std::chrono::steady_clock;

Status ended() { return Status(StatusCode::kClosed, "the Python interpreter is ending, so its store cannot be used"); }

nb::object key_text(std::string_view key) { return nb::str(key.data(), key.size()); }

std::string what(nb::python_error& error) {
  return std::string(nb::type_name(error.type()).c_str()) + ": " + nb::cast<std::string>(nb::str(error.value()));
}

class PythonStore final : public Store {
 public:
  explicit PythonStore(nb::object object)
      : object_(std::move(object)),
        name_(nb::hasattr(object_, "describe") ? nb::cast<std::string>(object_.attr("describe")())
                                               : std::string("python ") + nb::type_name(object_.type()).c_str()),
        has_check_(nb::hasattr(object_, "check")) {}

  ~PythonStore() override {
    const PythonCallScope scope;
    if (!scope.may_call()) {
      (void)object_.release();
      return;
    }
    const WithGil with_gil;
    object_.reset();
  }

  Status set(std::string_view key, std::string_view value) override {
    return call("set", key, [&]() -> Status {
      object_.attr("set")(key_text(key), nb::bytes(value.data(), value.size()));
      return {};
    });
  }

  Result<std::string> get(std::string_view key, Duration timeout) override {
    const auto start = Clock::now();
    const auto deadline = timeout > Clock::time_point::max() - start ? Clock::time_point::max() : start + timeout;
    for (auto pause = kMinPause;; pause = std::min(2 * pause, kMaxPause)) {
      std::optional<std::string> value;
      const Status status = call("get", key, [&]() -> Status {
        value = poll(key);
        return {};
      });
      if (value) return std::move(*value);
      if (!status.ok()) return status;
      if (Clock::now() >= deadline)
        return Status(StatusCode::kTimeout, "key \"" + std::string(key) + "\" was not set in " + name_ + " in time");
      std::this_thread::sleep_for(pause);
    }
  }

  Result<std::int64_t> add(std::string_view key, std::int64_t delta) override {
    std::int64_t sum = 0;
    const Status status = call("add", key, [&]() -> Status {
      sum = integer_of(object_.attr("add")(key_text(key), delta));
      return {};
    });
    if (!status.ok()) return status;
    return sum;
  }

  Status erase(std::string_view key) override {
    return call("erase", key, [&]() -> Status {
      for (const char* method : {"delete_key", "erase"}) {
        if (!nb::hasattr(object_, method)) continue;
        object_.attr(method)(key_text(key));
        break;
      }
      return {};
    });
  }

  std::string describe() const override { return name_; }

 private:
  template <typename Body>
  Status call(const char* method, std::string_view key, Body body) {
    const PythonCallScope scope;
    if (!scope.may_call()) return ended();
    const WithGil with_gil;
    try {
      return body();
    } catch (nb::python_error& error) {
      return Status(StatusCode::kIo, name_ + "." + method + "(\"" + std::string(key) + "\") raised " + what(error));
    } catch (const std::exception& error) {
      return Status(StatusCode::kIo, name_ + "." + method + "(\"" + std::string(key) + "\") failed: " + error.what());
    }
  }

  /// nullopt if the key is not set yet.
  std::optional<std::string> poll(std::string_view key) {
    if (has_check_) {
      nb::list keys;
      keys.append(key_text(key));
      if (!nb::bool_(object_.attr("check")(keys))) return std::nullopt;
    }
    try {
      return bytes_of(object_.attr("get")(key_text(key)));
    } catch (nb::python_error& error) {
      if (error.matches(PyExc_LookupError)) return std::nullopt;
      throw;
    }
  }

  static std::optional<std::string> bytes_of(const nb::object& value) {
    if (value.is_none()) return std::nullopt;
    if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
    const nb::bytes bytes(value);
    return std::string(bytes.c_str(), bytes.size());
  }

  nb::object object_;
  const std::string name_;
  const bool has_check_;
};

}  // namespace

std::shared_ptr<Store> make_python_store(nb::object object) { return std::make_shared<PythonStore>(std::move(object)); }

}  // namespace accord::python
