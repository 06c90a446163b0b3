// Bytes are sent as eager active messages (no rendezvous) over one UCX endpoint per remote process, on which such
// messages arrive in order. ucp_put would be the obvious choice, but over TCP UCX emulates it in small pieces and
// reaches a tenth of the bandwidth (docs/decisions/hosts.md).
//
// Nothing arrives unless a thread calls ucp_worker_progress(). Threads that wait for a peer do; otherwise the
// worker's own thread does. It sleeps in epoll while there is nothing to do and for a millisecond at a time while
// others poll, so that it neither competes with them nor leaves messages unserved once they have stopped.
#include "transport/ucx/worker.hpp"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>

#include "base/blocked_signals.hpp"
#include "base/log.hpp"

namespace accord::transport::ucx {
namespace {

constexpr unsigned kMessageId = 1;
constexpr std::size_t kMaxFree = 64;
constexpr int kTickMilliseconds = 1;
constexpr int kProgressAtOnce = 64;

std::mutex creation_mutex;
std::atomic<Worker*> the_worker = nullptr;
std::atomic<pid_t> worker_process = 0;

Status failed(const UcxLibrary& ucx, std::string_view what, ucs_status_t status) {
  return Status(StatusCode::kUnsupported, fmt::format("UCX: {}: {}", what, ucx.status_string(status)));
}

/// Creates a context for the fabrics that UCX finds, except shared memory, which accord handles itself.
Result<ucp_context_h> make_context(const UcxLibrary& ucx) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucx.config_read(nullptr, nullptr, &config); status != UCS_OK)
    return failed(ucx, "its configuration cannot be read", status);
  if (std::getenv("UCX_TLS") == nullptr) ucx.config_modify(config, "TLS", "^sm");
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  const ucs_status_t status = ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context);
  ucx.config_release(config);
  if (status != UCS_OK) return failed(ucx, "no fabric can be used", status);
  return context;
}

Status not_after_fork() {
  const pid_t process = worker_process.load();
  if (process == 0 || process == ::getpid()) return {};
  return Status(StatusCode::kUnsupported,
                fmt::format("UCX was in use in process {}, from which this one was forked, and cannot be used in both; "
                            "start a new program instead of a fork",
                            process));
}

void close_request(void* request, ucs_status_t, void* library) {
  static_cast<const UcxLibrary*>(library)->request_free(request);
}

}  // namespace

Route::~Route() {
  if (ep == nullptr) return;
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  params.cb.send = close_request;
  params.user_data = const_cast<UcxLibrary*>(&ucx);
  ucx.ep_close_nbx(ep, &params);
}

Status Worker::viable() {
  ACCORD_RETURN_IF_ERROR(not_after_fork());
  return ucx_library().status();
}

Result<Worker*> Worker::instance() {
  ACCORD_RETURN_IF_ERROR(not_after_fork());
  const std::lock_guard lock(creation_mutex);
  if (the_worker.load() != nullptr) return the_worker.load();
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<Worker> made, make());
  worker_process = ::getpid();
  the_worker = made.release();
  // Runs before UCX's own clean-up, which was registered when UCX was loaded.
  std::atexit([] {
    if (worker_process != ::getpid()) return;
    const std::lock_guard last(the_worker.load()->mutex_);
    the_worker.load()->ended_ = true;
  });
  return the_worker.load();
}

Result<std::unique_ptr<Worker>> Worker::make() {
  ACCORD_ASSIGN_OR_RETURN(const UcxLibrary* const ucx, ucx_library());
  ACCORD_ASSIGN_OR_RETURN(ucp_context_h const context, make_context(*ucx));
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucp_worker_h worker = nullptr;
  if (const ucs_status_t status = ucx->worker_create(context, &params, &worker); status != UCS_OK)
    return failed(*ucx, "a worker cannot be created", status);
  ucp_address_t* bytes = nullptr;
  std::size_t length = 0;
  if (const ucs_status_t status = ucx->worker_get_address(worker, &bytes, &length); status != UCS_OK)
    return failed(*ucx, "the worker has no address", status);
  std::string address(reinterpret_cast<const char*>(bytes), length);
  ucx->worker_release_address(worker, bytes);
  int source = -1;
  if (const ucs_status_t status = ucx->worker_get_efd(worker, &source); status != UCS_OK)
    return failed(*ucx, "the worker cannot be waited for", status);
  UniqueFd events(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event = {};
  event.events = EPOLLIN;
  if (!events.valid() || ::epoll_ctl(events.get(), EPOLL_CTL_ADD, source, &event) != 0)
    return errno_status(errno, "UCX: its worker cannot be watched");
  std::unique_ptr<Worker> made(new Worker(*ucx, worker, std::move(address), std::move(events)));
  ACCORD_RETURN_IF_ERROR(made->listen());
  return made;
}

Worker::Worker(const UcxLibrary& ucx, ucp_worker_h worker, std::string address, UniqueFd events)
    : ucx_(ucx), worker_(worker), address_(std::move(address)), events_(std::move(events)) {}

Status Worker::listen() {
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = &Worker::on_message;
  handler.arg = this;
  if (const ucs_status_t status = ucx_.worker_set_am_recv_handler(worker_, &handler); status != UCS_OK)
    return failed(ucx_, "its message handler cannot be set", status);
  try {
    const BlockedSignals blocked;
    std::thread([this] {
      pthread_setname_np(pthread_self(), "accord-ucx");
      loop();
    }).detach();
  } catch (const std::system_error& error) {
    return Status(StatusCode::kResourceExhausted, fmt::format("UCX: its thread could not start: {}", error.what()));
  }
  return {};
}

bool Worker::progress() {
  polls_.fetch_add(1, std::memory_order_relaxed);
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock.owns_lock() && !ended_ && ucx_.worker_progress(worker_) != 0;
}

void Worker::loop() {
  std::uint64_t last_polls = 0;
  while (true) {
    const std::uint64_t polls = polls_.load(std::memory_order_relaxed);
    const bool others_poll = polls != last_polls;
    last_polls = polls;
    if (others_poll) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kTickMilliseconds));
    } else if (fall_asleep()) {
      epoll_event event = {};
      ::epoll_wait(events_.get(), &event, 1, -1);
    }
  }
}

// True if there is nothing to do and the descriptor will report new work.
bool Worker::fall_asleep() {
  const std::lock_guard lock(mutex_);
  if (ended_) return true;
  for (int i = 0; i < kProgressAtOnce; ++i)
    if (ucx_.worker_progress(worker_) == 0) return ucx_.worker_arm(worker_) == UCS_OK;
  return false;
}

Result<std::shared_ptr<Route>> Worker::route_to(const std::string& address) {
  std::erase_if(routes_, [](const auto& entry) { return entry.second->failed; });
  if (const auto known = routes_.find(address); known != routes_.end()) return known->second;
  auto route = std::make_shared<Route>(ucx_);
  ucp_ep_params_t params = {};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = [](void* failed_route, ucp_ep_h, ucs_status_t) {
    static_cast<Route*>(failed_route)->failed = true;
  };
  params.err_handler.arg = route.get();
  if (const ucs_status_t status = ucx_.ep_create(worker_, &params, &route->ep); status != UCS_OK)
    return failed(ucx_, "a peer cannot be connected to", status);
  routes_.emplace(address, route);
  return route;
}

std::uint64_t Worker::attach(Receiver* receiver) {
  receivers_.emplace(next_receiver_, receiver);
  return next_receiver_++;
}

std::unique_ptr<Message> Worker::take_message() {
  if (free_.empty()) return std::make_unique_for_overwrite<Message>();
  std::unique_ptr<Message> message = std::move(free_.back());
  free_.pop_back();
  return message;
}

void Worker::free_message(std::unique_ptr<Message> message) {
  --*message->in_flight;
  message->route.reset();
  message->in_flight.reset();
  message->used = 0;
  if (free_.size() < kMaxFree) free_.push_back(std::move(message));
}

void Worker::send(std::unique_ptr<Message> message) {
  ++*message->in_flight;
  if (ended_ || message->route->failed) return free_message(std::move(message));
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.flags = UCP_AM_SEND_FLAG_EAGER;
  params.cb.send = &Worker::on_sent;
  params.user_data = message.get();
  message->worker = this;
  const ucs_status_ptr_t request =
      ucx_.am_send_nbx(message->route->ep, kMessageId, &message->header, sizeof message->header, message->bytes.data(),
                       message->used, &params);
  if (UCS_PTR_IS_ERR(request)) message->route->failed = true;
  if (UCS_PTR_IS_PTR(request)) {
    (void)message.release();  // on_sent() owns it
  } else {
    free_message(std::move(message));
  }
}

void Worker::on_sent(void* request, ucs_status_t status, void* message) {
  std::unique_ptr<Message> sent(static_cast<Message*>(message));
  Worker& self = *sent->worker;
  if (status != UCS_OK) sent->route->failed = true;
  self.ucx_.request_free(request);
  self.free_message(std::move(sent));
}

ucs_status_t Worker::on_message(void* self, const void* header, std::size_t header_bytes, void* data, std::size_t bytes,
                                const ucp_am_recv_param_t* how) {
  MessageHeader message;
  const bool whole =
      header_bytes == sizeof message && ((how->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 || bytes == 0);
  if (!whole) return UCS_OK;  // not from accord
  std::memcpy(&message, header, sizeof message);
  auto& receivers = static_cast<Worker*>(self)->receivers_;
  const auto receiver = receivers.find(message.receiver);
  if (receiver != receivers.end())  // otherwise it has closed
    receiver->second->receive(message.sequence, {static_cast<const std::byte*>(data), bytes});
  return UCS_OK;
}

}  // namespace accord::transport::ucx
