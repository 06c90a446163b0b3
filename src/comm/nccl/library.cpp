#include "comm/nccl/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "base/shared_library.hpp"

namespace accord::comm::nccl {
namespace {

constexpr const char* kName = "libnccl.so.2";
constexpr int kOldest = 21800;
constexpr int kFirstWithRegistration = 21900;
constexpr int kFirstWithWindows = 22700;
constexpr int kFirstWithRevoke = 22800;

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

/// The first name that `library` lacks; null if it has all.
const char* find_all(void* library, Functions& call) {
  const auto look_up = [&](const char* name, auto& function) -> const char* {
    return find(library, name, function) ? nullptr : name;
  };
#define ACCORD_NCCL_LOOK_UP(name) \
  if (const char* missing = look_up("nccl" #name, call.name)) return missing;
  ACCORD_NCCL_LOOK_UP(GetErrorString)
  ACCORD_NCCL_LOOK_UP(GetLastError)
  ACCORD_NCCL_LOOK_UP(GetUniqueId)
  ACCORD_NCCL_LOOK_UP(CommInitRankConfig)
  ACCORD_NCCL_LOOK_UP(CommSplit)
  ACCORD_NCCL_LOOK_UP(CommDestroy)
  ACCORD_NCCL_LOOK_UP(CommAbort)
  ACCORD_NCCL_LOOK_UP(CommGetAsyncError)
  ACCORD_NCCL_LOOK_UP(CommCount)
  ACCORD_NCCL_LOOK_UP(CommUserRank)
  ACCORD_NCCL_LOOK_UP(CommCuDevice)
  ACCORD_NCCL_LOOK_UP(RedOpCreatePreMulSum)
  ACCORD_NCCL_LOOK_UP(RedOpDestroy)
  ACCORD_NCCL_LOOK_UP(GroupStart)
  ACCORD_NCCL_LOOK_UP(GroupEnd)
  ACCORD_NCCL_LOOK_UP(AllReduce)
  ACCORD_NCCL_LOOK_UP(Reduce)
  ACCORD_NCCL_LOOK_UP(Broadcast)
  ACCORD_NCCL_LOOK_UP(AllGather)
  ACCORD_NCCL_LOOK_UP(ReduceScatter)
  ACCORD_NCCL_LOOK_UP(Send)
  ACCORD_NCCL_LOOK_UP(Recv)
#undef ACCORD_NCCL_LOOK_UP
  return nullptr;
}

/// Looks up functions of later versions. A library that lacks one is treated as an older one.
void find_later(void* library, int version, Functions& call) {
  const auto look_up = [&](int first, const char* name, auto& function) {
    return version >= first && find(library, name, function);
  };
  if (!look_up(kFirstWithRegistration, "ncclMemAlloc", call.MemAlloc) ||
      !look_up(kFirstWithRegistration, "ncclMemFree", call.MemFree))
    call.MemAlloc = nullptr;
  if (!look_up(kFirstWithRegistration, "ncclCommRegister", call.CommRegister) ||
      !look_up(kFirstWithRegistration, "ncclCommDeregister", call.CommDeregister))
    call.CommRegister = nullptr;
  if (!look_up(kFirstWithWindows, "ncclCommWindowRegister", call.CommWindowRegister) ||
      !look_up(kFirstWithWindows, "ncclCommWindowDeregister", call.CommWindowDeregister))
    call.CommWindowRegister = nullptr;
  (void)look_up(kFirstWithWindows, "ncclCommShrink", call.CommShrink);
  (void)look_up(kFirstWithRevoke, "ncclCommRevoke", call.CommRevoke);
}

std::atomic<const Library*> replaced = nullptr;
std::mutex searching;
std::string suggested;  // guarded by searching

Result<std::unique_ptr<const Library>> library_of(void* handle, const std::string& path) {
  auto library = std::make_unique<Library>();
  library->path = path;
  if (!find(handle, "ncclGetVersion", library->call.GetVersion) ||
      library->call.GetVersion(&library->version) != kSuccess)
    return Status(StatusCode::kUnsupported, fmt::format("{} does not report its version by ncclGetVersion", path));
  if (const std::string file = library_file_of(reinterpret_cast<const void*>(library->call.GetVersion)); !file.empty())
    library->path = file;
  if (library->version < kOldest)
    return Status(StatusCode::kUnsupported, fmt::format("{} is NCCL {}, older than {}", library->path,
                                                        version_text(library->version), version_text(kOldest)));
  if (const char* missing = find_all(handle, library->call))
    return Status(StatusCode::kUnsupported, fmt::format("{} has no {}", library->path, missing));
  find_later(handle, library->version, library->call);
  return std::unique_ptr<const Library>(std::move(library));
}

Result<std::unique_ptr<const Library>> search() {
  ACCORD_RETURN_IF_ERROR(config().status());
  if (!config()->nccl.empty()) {
    Result<std::unique_ptr<const Library>> given = load(config()->nccl);
    return given.ok() ? std::move(given) : given.status().with_context("environment variable ACCORD_NCCL");
  }
  if (void* const loaded = dlopen(kName, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD)) return library_of(loaded, kName);
  std::string tried;
  for (const std::string& path :
       {suggested, path_in_site_packages(fmt::format("nvidia/nccl/lib/{}", kName)), std::string(kName)}) {
    if (path.empty()) continue;
    Result<std::unique_ptr<const Library>> found = load(path);
    if (found.ok()) return found;
    tried += fmt::format("; {}", found.status().message());
  }
  return Status(StatusCode::kNotFound, fmt::format("NCCL was not found (ACCORD_NCCL names its library){}", tried));
}

}  // namespace

// NCCL numbers its versions major * 10000 + minor * 100 + patch since 2.9, before that major * 1000 + ...
std::string version_text(int version) {
  const int unit = version >= 10000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", version / unit, version % unit / 100, version % 100);
}

Status Library::failure(std::string_view function, int code) const {
  const char* const last = call.GetLastError(nullptr);
  const bool has_text = last != nullptr && last[0] != '\0';
  const StatusCode kind = code == kRemoteError ? StatusCode::kPeerLost : StatusCode::kInternal;
  return Status(kind, fmt::format("nccl{}: {}{}{}", function, call.GetErrorString(code), has_text ? ": " : "",
                                  has_text ? last : ""));
}

Result<std::unique_ptr<const Library>> load(const std::string& path) {
  void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (handle == nullptr) return Status(StatusCode::kNotFound, dlerror());
  return library_of(handle, path);
}

void suggest(std::string path) {
  const std::lock_guard lock(searching);
  suggested = std::move(path);
}

void replace_library(const Library* library) { replaced = library; }

Result<const Library*> library() {
  if (const Library* const other = replaced) return other;
  static const Library* found = nullptr;  // never deleted: the library has threads of its own
  const std::lock_guard lock(searching);
  if (found == nullptr) {  // a missing library may appear later, with torch
    ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<const Library> library, search());
    found = library.release();
  }
  return found;
}

}  // namespace accord::comm::nccl
