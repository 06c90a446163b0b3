// Each store is a Python class of its own over one C++ handle, all of them subclasses of accord.Store.
#include "store.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include "base/clock.hpp"
#include "base/config.hpp"
#include "comm/environment.hpp"
#include "duration.hpp"
#include "gil.hpp"
#include "interrupt.hpp"
#include "path.hpp"
#include "process.hpp"
#include "status.hpp"

namespace accord::python {
namespace {

constexpr Duration kDefaultTimeout = std::chrono::minutes(5);

struct AnyStore {
  explicit AnyStore(std::shared_ptr<Store> made) : store(std::move(made)) {}
  ProcessBound<std::shared_ptr<Store>> store;

  std::shared_ptr<Store>& use() { return store.use("this store"); }
};
struct MemoryStore : AnyStore {
  using AnyStore::AnyStore;
};
struct FileStore : AnyStore {
  using AnyStore::AnyStore;
};
struct TcpStore : AnyStore {
  using AnyStore::AnyStore;
};
struct PrefixStore : AnyStore {
  using AnyStore::AnyStore;
};

std::string value_argument(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (PyObject_CheckBuffer(value.ptr()) == 0)
    throw nb::type_error(
        (std::string("value: expected bytes or str, got ") + nb::type_name(value.type()).c_str()).c_str());
  const nb::bytes bytes(value);
  return {bytes.c_str(), bytes.size()};
}

nb::bytes get(AnyStore& self, std::string key, nb::handle timeout) {
  const Duration limit = duration_argument(timeout).value_or(kDefaultTimeout);
  const std::string value = value_or_raise(
      run_interruptibly([store = self.use(), key = std::move(key), limit] { return store->get(key, limit); }));
  return nb::bytes(value.data(), value.size());
}

void set(AnyStore& self, std::string key, nb::handle value) {
  const std::shared_ptr<Store> store = self.use();
  const std::string bytes = value_argument(value);
  Status status;
  {
    const WithoutGil without_gil;
    status = store->set(key, bytes);
  }
  raise_if_error(status);
}

std::int64_t add(AnyStore& self, std::string key, std::int64_t amount) {
  const std::shared_ptr<Store> store = self.use();
  Result<std::int64_t> sum(std::int64_t{0});
  {
    const WithoutGil without_gil;
    sum = store->add(key, amount);
  }
  return value_or_raise(std::move(sum));
}

void erase(AnyStore& self, std::string key) {
  const std::shared_ptr<Store> store = self.use();
  Status status;
  {
    const WithoutGil without_gil;
    status = store->erase(key);
  }
  raise_if_error(status);
}

void make_tcp(TcpStore* self, std::string host, int port, bool is_host, nb::handle timeout) {
  const Duration limit = duration_argument(timeout).value_or(kDefaultTimeout);
  const StoreRole role = is_host ? StoreRole::kHost : StoreRole::kClient;
  new (self) TcpStore(value_or_raise(run_interruptibly(
      [role, host = std::move(host), port, limit] { return make_tcp_store(role, host, port, limit); })));
}

/// The store that from_environment() would meet in, for a rank and size that may have come from elsewhere.
AnyStore job_store(Rank rank, int size, nb::handle timeout) {
  const Duration limit = duration_argument(timeout).value_or(kDefaultTimeout);
  std::map<std::string, std::string> environment = process_environment();
  Result<comm::JobPlace> place = comm::job_place(environment);
  if (!place.ok() || place->rank != rank || place->size != size) {
    environment["RANK"] = std::to_string(rank);
    environment["WORLD_SIZE"] = std::to_string(size);
    place = comm::job_place(environment);
  }
  return AnyStore(value_or_raise(run_interruptibly(
      [job = value_or_raise(std::move(place)), limit] { return comm::job_store(job, Deadline::in(limit)); })));
}

int tcp_port(TcpStore& self) {
  const std::string where = self.use()->describe();
  return std::stoi(where.substr(where.rfind(':') + 1));
}

}  // namespace

void bind_stores(nb::module_& module) {
  nb::class_<AnyStore>(module, "Store",
                       R"(A key-value store by which ranks that do not yet know each other meet.

Values are bytes of at most 8 MiB, keys text of at most 4 KiB. Any thread may call any method.
Wherever accord takes a Store, an object with the same methods set, get and add does as well:
torch.distributed's stores, or your own.)")
      .def("set", &set, nb::arg("key"), nb::arg("value"),
           nb::sig("def set(self, key: str, value: bytes | bytearray | str) -> None"),
           "Sets `key` and wakes whoever waits for it. Overwrites.")
      .def("get", &get, nb::arg("key"), nb::arg("timeout") = nb::none(),
           nb::sig("def get(self, key: str, timeout: float | datetime.timedelta | None = None) -> bytes"),
           R"(Waits until `key` is set, at most `timeout` seconds (5 minutes by default), and gives its value.

Raises Timeout, which names the key.)")
      .def("add", &add, nb::arg("key"), nb::arg("amount"),
           "Adds `amount` to the decimal number at `key` (absent counts as 0), at once for all ranks; gives the sum.")
      .def("erase", &erase, nb::arg("key"), "Removes `key` if it is there.")
      .def(
          "describe", [](AnyStore& self) { return self.use()->describe(); }, "Where it is: \"tcp://10.0.0.1:29500\".")
      .def("__repr__", [](AnyStore& self) { return "<accord.Store " + self.use()->describe() + ">"; });

  nb::class_<MemoryStore, AnyStore>(module, "MemoryStore", "A store for ranks that are threads of one process.")
      .def("__init__", [](MemoryStore* self) { new (self) MemoryStore(make_memory_store()); });

  nb::class_<FileStore, AnyStore>(module, "FileStore",
                                  R"(A store in directory `path` (made if absent) of a file system that all ranks see.

Removes nothing at the end; use a new directory for each job.)")
      .def(
          "__init__",
          [](FileStore* self, nb::handle path) {
            new (self) FileStore(value_or_raise(make_file_store(path_argument(path))));
          },
          nb::arg("path"), nb::sig("def __init__(self, path: str | os.PathLike[str]) -> None"));

  nb::class_<TcpStore, AnyStore>(module, "TcpStore",
                                 R"(A store over TCP at `host`:`port`.

The one with is_host=True serves it from a thread while it lives, and is a client too; port 0
takes a free one (see `port`). A client retries the connection for `timeout` seconds (5
minutes by default), then raises Timeout; NotFound at once if `host` has no address.)")
      .def("__init__", &make_tcp, nb::arg("host"), nb::arg("port"), nb::arg("is_host") = false,
           nb::arg("timeout") = nb::none(),
           nb::sig("def __init__(self, host: str, port: int, is_host: bool = False, "
                   "timeout: float | datetime.timedelta | None = None) -> None"))
      .def_prop_ro("port", &tcp_port, "The port it is at.");

  nb::class_<PrefixStore, AnyStore>(module, "PrefixStore",
                                    "`store` seen through a prefix: key \"k\" is \"prefix/k\" there.")
      .def(
          "__init__",
          [](PrefixStore* self, nb::handle store, std::string prefix) {
            new (self) PrefixStore(make_prefix_store(store_argument(store), std::move(prefix)));
          },
          nb::arg("store"), nb::arg("prefix"),
          nb::sig("def __init__(self, store: Store | accord._arrays.StoreLike, prefix: str) -> None"));

  module.def("job_store", &job_store, nb::arg("rank"), nb::arg("size"), nb::arg("timeout") = nb::none(),
             nb::sig("def job_store(rank: int, size: int, timeout: float | None = None) -> Store"),
             "The store of the job, in which Communicator.from_environment() meets; kept as long as the process.");
}

std::shared_ptr<Store> store_argument(nb::handle object) {
  if (nb::isinstance<AnyStore>(object)) return nb::cast<AnyStore&>(object).use();
  for (const char* method : {"set", "get", "add"})
    if (!nb::hasattr(object, method))
      throw nb::type_error((std::string("store: expected an accord.Store or an object with set, get and add; ") +
                            nb::type_name(object.type()).c_str() + " has no " + method)
                               .c_str());
  return make_python_store(nb::borrow(object));
}

}  // namespace accord::python
