#pragma once
// UCX's functions, looked up at run time in the library that this machine has.

#include <ucp/api/ucp.h>

#include "accord/status.hpp"

namespace accord::transport::ucx {

struct UcxLibrary {
  decltype(&::ucp_get_version) get_version;
  decltype(&::ucp_config_read) config_read;
  decltype(&::ucp_config_modify) config_modify;
  decltype(&::ucp_config_release) config_release;
  decltype(&::ucp_init_version) init_version;
  decltype(&::ucp_worker_create) worker_create;
  decltype(&::ucp_worker_get_address) worker_get_address;
  decltype(&::ucp_worker_release_address) worker_release_address;
  decltype(&::ucp_worker_progress) worker_progress;
  decltype(&::ucp_worker_get_efd) worker_get_efd;
  decltype(&::ucp_worker_arm) worker_arm;
  decltype(&::ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
  decltype(&::ucp_ep_create) ep_create;
  decltype(&::ucp_ep_close_nbx) ep_close_nbx;
  decltype(&::ucp_am_send_nbx) am_send_nbx;
  decltype(&::ucp_request_free) request_free;
  decltype(&::ucs_status_string) status_string;
};

/// kUnsupported says what is missing. The library stays loaded, since UCX cannot be unloaded safely. Thread-safe.
Result<const UcxLibrary*> ucx_library();

}  // namespace accord::transport::ucx
