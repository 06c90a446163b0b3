// A mask's calls wait in a queue for the thread that makes them. prepare() adds a call to it, and restrict() waits for
// its result. Python objects are also released by that thread, because the last user of a mask may be the thread of a
// model, which must not wait for the GIL.
#include "bindings/language/token_mask.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include "base/blocked_signals.hpp"
#include "bindings/interpreter/gil.hpp"
#include "bindings/interpreter/process.hpp"
#include "bindings/interpreter/status.hpp"

namespace accord::python {
namespace {

struct MaskCall {
  PyObject* mask = nullptr;  // its release comes later in the queue
  int sample = 0;
  std::vector<TokenId> generated;
  // Guarded by the thread's mutex:
  bool ended = false;
  Status status;
  std::vector<std::uint64_t> allowed;
};

// Returns the bits as words. REQUIRES: the GIL.
std::vector<std::uint64_t> call_mask(const MaskCall& call) {
  const nb::bytes tokens(call.generated.data(), call.generated.size() * sizeof(TokenId));
  const nb::object view = nb::steal(PyMemoryView_FromObject(tokens.ptr()));
  if (!view.is_valid()) throw nb::python_error();
  const nb::object result = nb::borrow(call.mask)(call.sample, view.attr("cast")("i"));
  if (!nb::isinstance<nb::bytes>(result))
    throw nb::type_error(
        (std::string("it returned a ") + nb::type_name(result.type()).c_str() + ", not bytes").c_str());
  const auto bits = nb::borrow<nb::bytes>(result);
  std::vector<std::uint64_t> words((bits.size() + 7) / 8, 0);
  if (bits.size() > 0) std::memcpy(words.data(), bits.c_str(), bits.size());
  return words;
}

class MaskThread {
 public:
  // The thread of this process. Never destroyed: masks may outlive everything else.
  static MaskThread& instance() {
    static std::mutex mutex;
    static MaskThread* current = nullptr;
    static std::uint64_t generation = 0;
    const std::lock_guard lock(mutex);
    if (current == nullptr || generation != fork_generation()) {
      current = new MaskThread;
      generation = fork_generation();
      const BlockedSignals blocked;
      std::thread([thread = current] { thread->run(); }).detach();
    }
    return *current;
  }

  void add(std::shared_ptr<MaskCall> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    changed_.notify_one();
  }

  void release(PyObject* mask) {
    const auto call = std::make_shared<MaskCall>();
    call->mask = mask;
    call->ended = true;  // nothing waits for it
    add(call);
  }

  Status wait(MaskCall& call, std::span<std::uint64_t> allowed) {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return call.ended; });
    ACCORD_RETURN_IF_ERROR(call.status);
    for (std::size_t word = 0; word < allowed.size(); ++word)
      allowed[word] &= word < call.allowed.size() ? call.allowed[word] : 0;
    return Status();
  }

 private:
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !calls_.empty(); });
      std::deque<std::shared_ptr<MaskCall>> calls = std::exchange(calls_, {});
      lock.unlock();
      const PythonCallScope scope;
      if (!scope.may_call()) {
        for (const auto& call : calls) end(*call, Status(StatusCode::kClosed, "the interpreter is ending"), {});
        continue;
      }
      const WithGil gil;
      for (const auto& call : calls) serve(*call);
    }
  }

  void serve(MaskCall& call) {
    if (call.ended) {
      Py_DECREF(call.mask);
      return;
    }
    try {
      end(call, Status(), call_mask(call));
    } catch (nb::python_error& error) {
      const nb::object type = nb::borrow(error.type());
      const std::string text = nb::str(error.value()).c_str();
      end(call, failed(std::string(nb::str(type.attr("__name__")).c_str()) + ": " + text), {});
    } catch (const std::exception& error) {
      end(call, failed(error.what()), {});
    }
  }

  static Status failed(const std::string& reason) {
    return Status(StatusCode::kInvalidArgument, "the mask failed: " + reason);
  }

  void end(MaskCall& call, Status status, std::vector<std::uint64_t> allowed) {
    const std::lock_guard lock(mutex_);
    if (call.ended) return;
    call.status = std::move(status);
    call.allowed = std::move(allowed);
    call.ended = true;
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::condition_variable ended_;
  std::deque<std::shared_ptr<MaskCall>> calls_;
};

class PythonMask final : public TokenMask {
 public:
  // REQUIRES: the GIL.
  explicit PythonMask(nb::handle mask) : mask_(mask.inc_ref().ptr()), thread_(MaskThread::instance()) {}
  ~PythonMask() override { thread_.release(mask_); }
  PythonMask(const PythonMask&) = delete;
  PythonMask& operator=(const PythonMask&) = delete;

  void prepare(int sample, std::span<const TokenId> generated) const override { (void)call_of(sample, generated); }

  Status restrict(int sample, std::span<const TokenId> generated, std::span<std::uint64_t> allowed) const override {
    return thread_.wait(*call_of(sample, generated), allowed);
  }

 private:
  // Returns the sample's last call if it was made for these tokens, else a new one.
  std::shared_ptr<MaskCall> call_of(int sample, std::span<const TokenId> generated) const {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<MaskCall>& last = last_[sample];
    if (last == nullptr || !std::ranges::equal(last->generated, generated)) {
      last = std::make_shared<MaskCall>();
      last->mask = mask_;
      last->sample = sample;
      last->generated.assign(generated.begin(), generated.end());
      thread_.add(last);
    }
    return last;
  }

  PyObject* const mask_;
  MaskThread& thread_;
  mutable std::mutex mutex_;
  mutable std::map<int, std::shared_ptr<MaskCall>> last_;
};

}  // namespace

std::shared_ptr<const TokenMask> token_mask_argument(nb::handle mask) {
  if (mask.is_none()) return nullptr;
  if (PyCallable_Check(mask.ptr()) == 0) throw std::bad_cast();
  return std::make_shared<PythonMask>(mask);
}

}  // namespace accord::python
