#include "bindings/arguments/dlpack_exchange.hpp"

namespace accord::python {

const DlpackExchange* exchange_of(nb::handle object) {
  static PyObject* last_type = nullptr;  // a strong reference
  static const DlpackExchange* last = nullptr;
  PyObject* type = object.type().ptr();
  if (type == last_type) return last;
  const DlpackExchange* found = nullptr;
  const nb::object capsule = nb::steal(PyObject_GetAttrString(type, "__dlpack_c_exchange_api__"));
  if (capsule.is_valid() && PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api"))
    found = static_cast<const DlpackExchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  PyErr_Clear();
  while (found != nullptr && found->major != 1) found = found->previous;
  Py_XDECREF(last_type);
  last_type = Py_NewRef(type);
  last = found;
  return found;
}

bool reports_cuda(nb::handle object) {
  const nb::object reported = nb::steal(PyObject_CallMethod(object.ptr(), "__dlpack_device__", nullptr));
  int type = 0, index = 0;
  const bool known = reported.is_valid() && PyTuple_Check(reported.ptr()) &&
                     PyArg_ParseTuple(reported.ptr(), "ii", &type, &index) != 0;
  PyErr_Clear();
  return known && (type == kDlpackCuda || type == kDlpackCudaManaged);
}

}  // namespace accord::python
