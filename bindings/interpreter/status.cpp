// One table: StatusCode, the exception's name, the built-in exception that it also derives from (so that `except
// TimeoutError` works without knowing accord), and its documentation. Each instance has `code` (from its class) and
// `ranks`.
#include "bindings/interpreter/status.hpp"

#include <array>
#include <cstddef>

namespace accord::python {
namespace {

struct ErrorClass {
  StatusCode code;
  const char* name;
  PyObject* const* also;  ///< a built-in exception, or null
  PyObject* const* also_too;
  const char* doc;
};

constexpr std::array kErrorClasses = {
    ErrorClass{StatusCode::kInvalidArgument, "InvalidArgument", &PyExc_ValueError, nullptr,
               "The caller passed something without meaning. Also a ValueError."},
    ErrorClass{StatusCode::kUnsupported, "Unsupported", &PyExc_NotImplementedError, nullptr,
               "Meaningful, but this build, machine or version cannot do it. Also a NotImplementedError."},
    ErrorClass{StatusCode::kNotFound, "NotFound", &PyExc_FileNotFoundError, &PyExc_LookupError,
               "A key, file, name or device does not exist. Also a FileNotFoundError and a LookupError."},
    ErrorClass{StatusCode::kMismatch, "Mismatch", nullptr, nullptr,
               "Ranks disagree about a call, a package or a plan."},
    ErrorClass{StatusCode::kPeerLost, "PeerLost", &PyExc_ConnectionError, nullptr,
               "A rank died or closed its communicator; `ranks` names it. Also a ConnectionError."},
    ErrorClass{StatusCode::kTimeout, "Timeout", &PyExc_TimeoutError, nullptr,
               "A rank did not arrive in time; `ranks` names the missing ranks. Also a TimeoutError."},
    ErrorClass{StatusCode::kAborted, "Aborted", nullptr, nullptr,
               "abort() was called, or a rank was interrupted by Ctrl-C."},
    ErrorClass{StatusCode::kClosed, "Closed", nullptr, nullptr, "Used after close()."},
    ErrorClass{StatusCode::kCorrupt, "Corrupt", nullptr, nullptr, "Data is damaged or malformed."},
    ErrorClass{StatusCode::kIo, "IoError", &PyExc_OSError, nullptr, "The operating system refused. Also an OSError."},
    ErrorClass{StatusCode::kResourceExhausted, "ResourceExhausted", nullptr, nullptr,
               "Out of memory, descriptors or space."},
    ErrorClass{StatusCode::kWrongState, "WrongState", &PyExc_RuntimeError, nullptr,
               "The object's state does not allow the call. Also a RuntimeError."},
    ErrorClass{StatusCode::kInternal, "InternalError", &PyExc_RuntimeError, nullptr,
               "A defect of accord. Also a RuntimeError."},
};

constexpr std::size_t kCodes = static_cast<std::size_t>(StatusCode::kInternal) + 1;
std::array<PyObject*, kCodes> exception_of{};  // by StatusCode; never freed

}  // namespace

void bind_errors(nb::module_& module) {
  const auto module_name = nb::cast<std::string>(module.attr("__name__"));
  nb::dict body;
  body["code"] = "";
  body["ranks"] = nb::tuple();
  const nb::object base = nb::steal(PyErr_NewExceptionWithDoc((module_name + ".Error").c_str(),
                                                              R"(The base class of every failure of accord.

code: the kind of failure in snake_case, e.g. "peer_lost"; the same for all instances of a subclass.
ranks: the ranks at fault, as ranks of the communicator whose call failed; empty if none is known.)",
                                                              nullptr, body.ptr()));
  if (!base.is_valid()) throw nb::python_error();
  module.attr("Error") = base;
  for (const ErrorClass& error : kErrorClasses) {
    nb::list bases;
    bases.append(base);
    for (PyObject* const* also : {error.also, error.also_too})
      if (also != nullptr) bases.append(nb::borrow(*also));
    nb::dict attributes;
    const std::string_view code = to_string(error.code);
    attributes["code"] = nb::str(code.data(), code.size());
    const std::string name = module_name + "." + error.name;
    PyObject* type = PyErr_NewExceptionWithDoc(name.c_str(), error.doc, nb::tuple(bases).ptr(), attributes.ptr());
    if (type == nullptr) throw nb::python_error();
    exception_of[static_cast<std::size_t>(error.code)] = type;
    module.attr(error.name) = nb::borrow(type);
  }
}

nb::object exception_for(const Status& status) {
  if (status.ok()) return nb::none();
  PyObject* type = exception_of[static_cast<std::size_t>(status.code())];
  // A message may quote bytes that are not UTF-8.
  const auto size = static_cast<Py_ssize_t>(status.message().size());
  const nb::object text = nb::steal(PyUnicode_DecodeUTF8(status.message().data(), size, "replace"));
  if (!text.is_valid()) throw nb::python_error();
  const nb::object instance = nb::borrow(type)(text);
  nb::list ranks;
  for (const Rank rank : status.ranks()) ranks.append(rank);
  instance.attr("ranks") = nb::tuple(ranks);
  return instance;
}

void raise(const Status& status) {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  const nb::object instance = exception_for(status);
  PyErr_SetObject(instance.type().ptr(), instance.ptr());
  throw nb::python_error();
}

void raise_invalid(std::string message) { raise(Status(StatusCode::kInvalidArgument, std::move(message))); }

}  // namespace accord::python
