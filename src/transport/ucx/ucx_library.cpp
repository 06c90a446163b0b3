// libucp loads libucs; the loader's own search finds both. When a peer dies, UCX writes to standard error, which
// duplicates accord's report, so its logging is turned down unless the user has set UCX_LOG_LEVEL. It also catches
// signals such as SIGSEGV, which belong to the program. UCX reads both options when it is loaded; functions of libucs
// undo them, because the environment belongs to the program too.
#include "transport/ucx/ucx_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

namespace accord::transport::ucx {
namespace {

constexpr const char* kLibrary = "libucp.so.0";
constexpr unsigned kOldestMinor = 11;  // ucp_am_send_nbx and what it needs, as used here

template <typename Function>
Status look_up(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return {};
  return Status(StatusCode::kUnsupported, fmt::format("{} has no {}", kLibrary, name));
}

void keep_quiet(void* library) {
  using SetOption = ucs_status_t (*)(const char*, const char*);
  const auto set_option = reinterpret_cast<SetOption>(dlsym(library, "ucs_global_opts_set_value"));
  if (set_option != nullptr && std::getenv("UCX_LOG_LEVEL") == nullptr) set_option("LOG_LEVEL", "fatal");
  const auto leave_signals = reinterpret_cast<void (*)()>(dlsym(library, "ucs_debug_disable_signals"));
  if (leave_signals != nullptr && std::getenv("UCX_HANDLE_ERRORS") == nullptr) leave_signals();
}

Result<UcxLibrary> load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return Status(StatusCode::kUnsupported, fmt::format("UCX was not found: {}", dlerror()));
  UcxLibrary ucx = {};
  for (const Status& found : {
           look_up(library, "ucp_get_version", ucx.get_version),
           look_up(library, "ucp_config_read", ucx.config_read),
           look_up(library, "ucp_config_modify", ucx.config_modify),
           look_up(library, "ucp_config_release", ucx.config_release),
           look_up(library, "ucp_init_version", ucx.init_version),
           look_up(library, "ucp_worker_create", ucx.worker_create),
           look_up(library, "ucp_worker_get_address", ucx.worker_get_address),
           look_up(library, "ucp_worker_release_address", ucx.worker_release_address),
           look_up(library, "ucp_worker_progress", ucx.worker_progress),
           look_up(library, "ucp_worker_get_efd", ucx.worker_get_efd),
           look_up(library, "ucp_worker_arm", ucx.worker_arm),
           look_up(library, "ucp_worker_set_am_recv_handler", ucx.worker_set_am_recv_handler),
           look_up(library, "ucp_ep_create", ucx.ep_create),
           look_up(library, "ucp_ep_close_nbx", ucx.ep_close_nbx),
           look_up(library, "ucp_am_send_nbx", ucx.am_send_nbx),
           look_up(library, "ucp_request_free", ucx.request_free),
           look_up(library, "ucs_status_string", ucx.status_string),
       })
    ACCORD_RETURN_IF_ERROR(found);
  unsigned major = 0, minor = 0, release = 0;
  ucx.get_version(&major, &minor, &release);
  if (major != UCP_API_MAJOR || minor < kOldestMinor) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("{} is UCX {}.{}.{}; accord needs {}.{} or a later {}.x", kLibrary, major, minor, release,
                              UCP_API_MAJOR, kOldestMinor, UCP_API_MAJOR));
  }
  keep_quiet(library);
  return ucx;
}

}  // namespace

Result<const UcxLibrary*> ucx_library() {
  static const Result<UcxLibrary> loaded = load();
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace accord::transport::ucx
