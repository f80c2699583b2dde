"""fanin.export"""
