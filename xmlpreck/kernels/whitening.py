"""Moments of dense rows, the matrix that makes their covariance the identity, and rows multiplied by it.

Everything is float64 and added in a fixed order: BLAS and LAPACK have other bits for other batches and threads.
"""

import numpy as np

from xmlpreck.kernels.caching import kernel


@kernel
def add_moments(rows, sums, products):
    """sums += x, products += x x^T (lower half) of every row that is not all 0. Returns how many there are."""
    n = 0
    x = np.empty(rows.shape[1])
    for row in range(len(rows)):
        if not rows[row].any():
            continue
        n += 1
        x[:] = rows[row]
        for i in range(len(x)):
            sums[i] += x[i]
            for j in range(i + 1):
                products[i, j] += x[i] * x[j]
    return n


@kernel
def invert_cholesky(covariance):
    """Return the transpose of L^-1, where L L^T is the covariance: rows times it have the identity as covariance."""
    n = len(covariance)
    lower, inverse = np.zeros((n, n)), np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1):
            rest = covariance[i, j]
            for k in range(j):
                rest -= lower[i, k] * lower[j, k]
            lower[i, j] = np.sqrt(rest) if i == j else rest / lower[j, j]
    for column in range(n):  # L y = e_column; y goes into a row
        y = inverse[column]
        y[column] = 1 / lower[column, column]
        for i in range(column + 1, n):
            rest = 0.0
            for k in range(column, i):
                rest -= lower[i, k] * y[k]
            y[i] = rest / lower[i, i]
    return inverse


@kernel
def transform_rows(rows, mean, matrix, found):
    """found = (x - mean) matrix of every row that is not all 0, which stays so; an empty matrix only centres.

    The matrix has zeros below its diagonal.
    """
    total = np.empty(len(mean))
    for row in range(len(rows)):
        if not rows[row].any():
            found[row] = 0
            continue
        if len(matrix) == 0:
            for i in range(len(mean)):
                found[row, i] = rows[row, i] - mean[i]
            continue
        total[:] = 0
        for i in range(len(mean)):
            centred = rows[row, i] - mean[i]
            for j in range(i, len(mean)):
                total[j] += centred * matrix[i, j]
        found[row] = total
