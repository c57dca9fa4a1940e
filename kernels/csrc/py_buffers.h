// Python's arrays, read through the buffer protocol. Declares the few names of Python's stable ABI that it needs, so that Python's headers
// need not be installed.

#pragma once

#include <sys/types.h>

#include <cstddef>

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
void PyErr_Clear();
PyObject* PyDict_GetItemWithError(PyObject*, PyObject*);
PyObject* PyObject_Type(PyObject*);
void Py_DecRef(PyObject*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
}

namespace {

constexpr int STRIDED = 0x18;  // PyBUF_STRIDES: ask for shape and strides

// Releases the GIL while an object lives.
class Free {
 public:
  Free() : thread(PyEval_SaveThread()) {}
  Free(const Free&) = delete;
  ~Free() { PyEval_RestoreThread(thread); }

 private:
  void* thread;
};

// Holds the buffers of some objects while it lives, with the GIL released. A null object has null data.
class Arrays {
 public:
  bool held = true;

  template <size_t N>
  Arrays(PyObject* const (&objects)[N]) {
    static_assert(N <= MOST);
    hold(objects, N);
  }
  Arrays(const Arrays&) = delete;
  ~Arrays() {
    PyEval_RestoreThread(thread);
    for (Py_buffer& buffer : of)
      if (buffer.obj) PyBuffer_Release(&buffer);
  }
  template <typename T = float>
  T* data(int i) const { return (T*)of[i].buf; }
  long size(int i, int axis) const { return of[i].shape[axis]; }
  long last(int i) const { return of[i].shape[of[i].ndim - 1]; }
  long stride(int i, int axis) const { return of[i].strides[axis] / of[i].itemsize; }
  long elements(int i) const { return of[i].len / of[i].itemsize; }

 private:
  static constexpr int MOST = 16;
  Py_buffer of[MOST] = {};
  void* thread;

  void hold(PyObject* const* objects, size_t count) {
    for (size_t i = 0; i < count; i++)
      if (held && objects[i] && PyObject_GetBuffer(objects[i], &of[i], STRIDED)) held = false, of[i] = {};
    thread = PyEval_SaveThread();
  }
};

}  // namespace
