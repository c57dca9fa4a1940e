// Arrays of Python's, by the buffer protocol. The few names of its stable ABI that this takes are declared here, so that its headers need
// not be there.

#pragma once

#include <sys/types.h>

#include <initializer_list>

extern "C" {
struct PyObject;
struct Py_buffer {
  void* buf;
  PyObject* obj;
  ssize_t len, itemsize;
  int readonly, ndim;
  char* format;
  ssize_t *shape, *strides, *suboffsets;
  void* internal;
};
int PyObject_GetBuffer(PyObject*, Py_buffer*, int);
void PyBuffer_Release(Py_buffer*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
}

namespace {

// The buffers of some objects, let go with this; the interpreter is free in between.
class Arrays {
 public:
  bool held = true;

  Arrays(std::initializer_list<PyObject*> objects) {
    constexpr int STRIDED = 0x18;
    for (PyObject* object : objects) {
      if (held && PyObject_GetBuffer(object, of + count, STRIDED) == 0) count++;
      else held = false;
    }
    thread = PyEval_SaveThread();
  }
  Arrays(const Arrays&) = delete;
  ~Arrays() {
    PyEval_RestoreThread(thread);
    while (count) PyBuffer_Release(of + --count);
  }
  template <typename T = float>
  T* data(int i) const { return (T*)of[i].buf; }
  long size(int i, int axis) const { return of[i].shape[axis]; }
  long stride(int i, int axis) const { return of[i].strides[axis] / of[i].itemsize; }
  long elements(int i) const { return of[i].len / of[i].itemsize; }

 private:
  Py_buffer of[5];
  int count = 0;
  void* thread;
};

}  // namespace
