"""What `import xmlpreck` offers."""
