// accord._core: the C++ classes for Python. The package `accord` gives them their public names.
#include <nanobind/nanobind.h>

#include "communicator.hpp"
#include "engine.hpp"
#include "information.hpp"
#include "interrupt.hpp"
#include "package.hpp"
#include "plan.hpp"
#include "process.hpp"
#include "status.hpp"
#include "store.hpp"
#include "window.hpp"
#include "work.hpp"

NB_MODULE(_core, module) {
  // Objects that live at the interpreter's end are no defect: everything behind them ends with the process.
  nanobind::set_leak_warnings(false);
  accord::python::watch_process();
  accord::python::watch_interrupts();
  accord::python::bind_errors(module);
  accord::python::bind_stores(module);
  accord::python::bind_work(module);
  accord::python::bind_window(module);
  accord::python::bind_communicator(module);
  accord::python::bind_engine(module);
  accord::python::bind_package(module);
  accord::python::bind_plans(module);
  accord::python::bind_information(module);
}
